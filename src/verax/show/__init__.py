"""Results for people: text for a terminal, pages for a browser. Nothing here decides a result."""
