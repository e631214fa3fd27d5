"""Examples as units: gradients of each example, clipped and added."""
