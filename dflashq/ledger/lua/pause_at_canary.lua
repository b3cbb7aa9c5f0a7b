#!lua flags=allow-oom
-- Pause an active run whose canary still stands where it was seen: whoever resumed the run, accepted
-- its canary or put it back to work meanwhile is not overruled. Safe to repeat.
-- args: where the canary was seen (done, dead, lost), reason
-- result: 1 paused now, 0 not
local canary = redis.call('HGET', RUN, 'waits_for')
if redis.call('HGET', RUN, 'state') ~= 'active' or not canary or canary == '' then return 0 end
if redis.call('ZSCORE', PENDING, canary) or redis.call('ZSCORE', LEASED, canary) then return 0 end
local place = 'lost'
if redis.call('HEXISTS', DONE, canary) == 1 then place = 'done' end
if redis.call('HEXISTS', DEAD, canary) == 1 then place = 'dead' end
if place ~= ARGV[1] then return 0 end
redis.call('HSET', RUN, 'state', 'paused', 'reason', ARGV[2])
return 1
