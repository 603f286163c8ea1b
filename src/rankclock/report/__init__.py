"""Tables, plots and the offline HTML report."""
