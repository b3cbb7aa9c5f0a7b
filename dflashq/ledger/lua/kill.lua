#!lua flags=allow-oom
-- The batch is dead at once: trying again cannot help (its commit object is not ours). Safe to repeat.
-- args: batch, fence, reason
-- result: 1 dead, 0 fenced
local batch, fence = ARGV[1], ARGV[2]
if not holds(batch, fence) then return 0 end
unlease(batch)
tell(batch, ARGV[3])
redis.call('HSET', DEAD, batch, ARGV[3])
return 1
