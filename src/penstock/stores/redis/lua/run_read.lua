-- Runs the read that ARGV[6] names.
return READS[ARGV[6]]()
