"""Tables, figures and comparisons. Everything here reads only the files that runs left behind."""
