"""Several arms on identical work: in lock step or one by one; and the same arms replayed in the simulator."""
