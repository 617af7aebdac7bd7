"""What a fit looks like: charts as plain numbers, drawn by matplotlib or in one self-contained HTML file."""
