"""One adapter for each kind of database connection a user may pass as `tx=`."""
