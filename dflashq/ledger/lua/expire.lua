#!lua flags=allow-oom
-- Leases past their end go back to pending (or are dead). Safe to repeat.
-- args: attempts allowed
-- result: {batch, 'pending' or 'dead'}...
local result = {}
for _, batch in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '-inf', now_ms())) do
  local outcome = requeue(batch, ARGV[1], holder(batch) .. ' fell silent past its lease')
  result[#result + 1] = { batch, outcome }
end
return result
