#!lua flags=allow-oom
-- The holder hands its batch back; no attempt is spent. Safe to repeat.
-- args: batch, fence, reason
-- result: 1 released, 0 fenced
local batch, fence = ARGV[1], ARGV[2]
if not holds(batch, fence) then return 0 end
if redis.call('HGET', LEASES, batch .. ':begun') == fence
  and tonumber(redis.call('HGET', ATTEMPTS, batch .. ':spent') or 0) > 0 then
  redis.call('HINCRBY', ATTEMPTS, batch .. ':spent', -1)
end
unlease(batch)
tell(batch, ARGV[3])
redis.call('ZADD', PENDING, order(batch), batch)
return 1
