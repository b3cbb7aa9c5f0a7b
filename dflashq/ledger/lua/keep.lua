#!lua
-- Finished generations and verdicts of an unfinished batch. Safe to repeat: what is kept stays.
-- args: batch, fence, budget bytes, then field, payload...
-- result: 'kept', 'fenced', or 'full' (nothing of this call was kept)
local batch, fence, budget = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not holds(batch, fence) then return 'fenced' end
local kept, fields, bytes = kept_key(batch), {}, 0
for i = 4, #ARGV, 2 do
  if redis.call('HEXISTS', kept, ARGV[i]) == 0 then
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = ARGV[i + 1]
    bytes = bytes + #ARGV[i] + #ARGV[i + 1]
  end
end
if bytes == 0 then
  -- A write all the same: WAITAOF waits for this connection's own writes only, and the one that
  -- stored this may have lost its reply before it was on disk.
  redis.call('HINCRBY', kept, 'bytes', 0)
  return 'kept'
end
if tonumber(redis.call('HGET', RUN, 'kept_bytes') or 0) + bytes > budget then return 'full' end
for i = 1, #fields, 2 do redis.call('HSET', kept, fields[i], fields[i + 1]) end
redis.call('HINCRBY', kept, 'bytes', bytes)
redis.call('HINCRBY', RUN, 'kept_bytes', bytes)
redis.call('HDEL', ATTEMPTS, batch .. ':spent')
return 'kept'
