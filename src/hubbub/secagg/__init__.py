"""How a server adds what it cannot read: Paillier encryption, fixed-point packing and threshold decryption."""
