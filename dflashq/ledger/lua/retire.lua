#!lua flags=allow-oom
-- A worker that ended in order goes off the list, unless its name is another boot's. Safe to repeat.
-- keys: 1 workers  hash  worker -> row (JSON)
-- args: worker, boot
-- result: 1 off the list, 0 there is no row of this boot
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or (cjson.decode(known).boot or '') ~= ARGV[2] then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
