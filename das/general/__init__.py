"""What all of das uses and nothing of which knows rollouts: files, arrays, errors, processes, output, C."""
