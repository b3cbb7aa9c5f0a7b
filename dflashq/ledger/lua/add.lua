-- Batches enter the outbox (pending: the sweep publishes their hints). Safe to repeat.
-- args: batch...
-- result: how many are new
local new = 0
for i = 1, #ARGV do
  local batch = ARGV[i]
  if redis.call('HEXISTS', DONE, batch) == 0 and redis.call('HEXISTS', DEAD, batch) == 0
    and not redis.call('ZSCORE', LEASED, batch) then
    new = new + redis.call('ZADD', PENDING, 'NX', order(batch), batch)
  end
end
return new
