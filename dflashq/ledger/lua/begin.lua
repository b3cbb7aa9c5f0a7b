#!lua flags=allow-oom
-- The attempt counts from here: the holder has its prompts and starts to generate. Safe to repeat.
-- args: batch, fence
-- result: attempts begun, this one included; 0 when fenced
local batch, fence = ARGV[1], ARGV[2]
if not holds(batch, fence) then return 0 end
if redis.call('HGET', LEASES, batch .. ':begun') ~= fence then
  redis.call('HSET', LEASES, batch .. ':begun', fence)
  redis.call('HINCRBY', ATTEMPTS, batch, 1)
  redis.call('HINCRBY', ATTEMPTS, batch .. ':spent', 1)
end
return tonumber(redis.call('HGET', ATTEMPTS, batch))
