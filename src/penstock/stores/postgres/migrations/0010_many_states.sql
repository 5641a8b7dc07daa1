-- Functions only: the time of a unit with many state writes grew with the square of their number.
SELECT 1;
