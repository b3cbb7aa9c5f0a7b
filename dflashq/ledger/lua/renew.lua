#!lua flags=allow-oom
-- Heartbeat for all leases that a worker holds in this run. Safe to repeat.
-- args: ttl ms, then batch, fence...
-- result: the state of the run, then per lease 1 renewed, 0 fenced
local ends = now_ms() + tonumber(ARGV[1])
local result = { redis.call('HGET', RUN, 'state') or 'unknown' }
for i = 2, #ARGV, 2 do
  if holds(ARGV[i], ARGV[i + 1]) then
    redis.call('ZADD', LEASED, ends, ARGV[i])
    result[#result + 1] = 1
  else
    result[#result + 1] = 0
  end
end
return result
