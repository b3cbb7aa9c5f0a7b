#!lua flags=allow-oom
-- The acknowledgement, after the upload: the batch enters the done-set with its object.
-- Accepted for a paused or cancelled run too. Safe to repeat with the same object.
-- args: batch, fence, object reference (JSON), then counter, n...
-- result: 'done', 'already' (in the done-set with this object), 'conflict' (with another), 'fenced'
local batch, fence, ref = ARGV[1], ARGV[2], ARGV[3]
local known = redis.call('HGET', DONE, batch)
if known then
  if known == ref then return 'already' end
  return 'conflict'
end
if not holds(batch, fence) then return 'fenced' end
unlease(batch)
redis.call('ZREM', PENDING, batch)
redis.call('HDEL', DEAD, batch)
redis.call('HSET', DONE, batch, ref)
drop_kept(batch)
for i = 4, #ARGV, 2 do redis.call('HINCRBY', COUNTERS, ARGV[i], ARGV[i + 1]) end
return 'done'
