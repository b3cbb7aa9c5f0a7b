#!lua flags=allow-oom
-- Pause, resume or cancel. A cancelled run stays cancelled, its kept work is dropped
-- (of a leased batch when its lease ends). Safe to repeat.
-- args: active|paused|cancelled, reason
-- result: the state that now holds, or 'unknown'
local state = redis.call('HGET', RUN, 'state')
if not state then return 'unknown' end
if state == 'cancelled' then return state end
redis.call('HSET', RUN, 'state', ARGV[1], 'reason', ARGV[2])
if ARGV[1] == 'cancelled' then
  for _, batch in ipairs(redis.call('ZRANGE', PENDING, 0, -1)) do drop_kept(batch) end
  for _, batch in ipairs(redis.call('HKEYS', DEAD)) do drop_kept(batch) end
end
return ARGV[1]
