#!lua flags=allow-oom
-- Reconcile: a batch in the done-set whose object is not on S3 is pending again. Safe to repeat.
-- args: batch, object reference (JSON) as known, then counter, n... to take back
-- result: 1 forgotten, 0 it is not done with this object
local batch = ARGV[1]
if redis.call('HGET', DONE, batch) ~= ARGV[2] then return 0 end
redis.call('HDEL', DONE, batch)
for i = 3, #ARGV, 2 do redis.call('HINCRBY', COUNTERS, ARGV[i], -tonumber(ARGV[i + 1])) end
tell(batch, 'its object is gone from S3')
redis.call('ZADD', PENDING, order(batch), batch)
return 1
