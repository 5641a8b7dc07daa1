-- What follows in this script uses careful_call.
local call = careful_call
