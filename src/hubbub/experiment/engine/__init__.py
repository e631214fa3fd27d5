"""A run at work: in its folder, by the clients of this process or by a Flower app."""
