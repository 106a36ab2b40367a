"""Tables, figures and comparisons of runs. This package reads only files that runs wrote."""
