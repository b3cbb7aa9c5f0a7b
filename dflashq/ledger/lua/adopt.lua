-- Reconcile: a committed object that the done-set has forgotten. Safe to repeat.
-- args: batch, object reference (JSON), then counter, n...
-- result: 1 entered, 0 it was there or the batch is leased (its holder adopts it)
local batch, ref = ARGV[1], ARGV[2]
if redis.call('HEXISTS', DONE, batch) == 1 or redis.call('ZSCORE', LEASED, batch) then return 0 end
redis.call('ZREM', PENDING, batch)
redis.call('HDEL', DEAD, batch)
redis.call('HSET', DONE, batch, ref)
drop_kept(batch)
for i = 3, #ARGV, 2 do redis.call('HINCRBY', COUNTERS, ARGV[i], ARGV[i + 1]) end
return 1
