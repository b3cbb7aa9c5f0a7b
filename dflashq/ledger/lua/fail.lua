#!lua flags=allow-oom
-- The holder's attempt failed: it is spent, though it ended before `begin`. Safe to repeat.
-- args: batch, fence, reason, attempts allowed
-- result: 'pending' (it is tried again), 'dead' (attempts spent), 'fenced'
local batch, fence = ARGV[1], ARGV[2]
if not holds(batch, fence) then return 'fenced' end
if redis.call('HGET', LEASES, batch .. ':begun') ~= fence then
  redis.call('HINCRBY', ATTEMPTS, batch .. ':spent', 1)
end
return requeue(batch, ARGV[4], ARGV[3])
