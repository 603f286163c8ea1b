"""Clock mathematics: exchanges, hulls, lines, mesh closure. Pure: takes numbers, gives bounds and estimates."""
