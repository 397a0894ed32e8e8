"""What keeps a table small and sound: flushing tails, collecting garbage, verifying, repairing, counting."""
