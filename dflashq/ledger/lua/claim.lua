#!lua flags=allow-oom
-- The right to work on the named batch, or on the oldest pending one.
-- Safe to repeat: a nonce that won already gets its lease again (the first reply was lost).
-- allow-oom: what fills Redis is freed only by whoever may claim and complete.
-- args: batch or '', worker, nonce, ttl ms, 1 for the named batch or none, the worker's boot or '',
--       then batches to avoid...
-- result: {'leased', batch, fence, attempts so far} or
--         {'none', why}: unknown, paused, cancelled, idle (nothing is pending), taken, done,
--         canary (all others wait for it, and somebody has it), avoided
local batch, worker, nonce, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local avoided = {}
for i = 7, #ARGV do avoided[ARGV[i]] = true end
local state = redis.call('HGET', RUN, 'state')
if not state then return { 'none', 'unknown' } end
for _, held in ipairs(redis.call('ZRANGE', LEASED, 0, -1)) do
  local fence = redis.call('HGET', LEASES, held)
  if fence and string.sub(fence, -#nonce) == nonce then
    redis.call('ZADD', LEASED, now_ms() + ttl, held)
    return { 'leased', held, fence, tonumber(redis.call('HGET', ATTEMPTS, held) or 0) }
  end
end
if state ~= 'active' then return { 'none', state } end
local canary = redis.call('HGET', RUN, 'waits_for')
if canary and canary ~= '' then
  if not redis.call('ZSCORE', PENDING, canary) then return { 'none', 'canary' } end
  batch = canary
end
if avoided[batch] then
  if batch == canary or ARGV[5] == '1' then return { 'none', 'avoided' } end
  batch = ''
end
if batch == '' or not redis.call('ZSCORE', PENDING, batch) then
  if ARGV[5] == '1' then
    return { 'none', redis.call('HEXISTS', DONE, batch) == 1 and 'done' or 'taken' }
  end
  batch = nil
  for _, pending in ipairs(redis.call('ZRANGE', PENDING, 0, math.max(0, #ARGV - 6))) do
    if not avoided[pending] then
      batch = pending
      break
    end
  end
  if not batch then return { 'none', 'idle' } end
end
local fence = redis.call('HINCRBY', RUN, 'fence', 1) .. '-' .. nonce
redis.call('ZREM', PENDING, batch)
redis.call('ZADD', LEASED, now_ms() + ttl, batch)
redis.call('HSET', LEASES, batch, fence, batch .. ':worker', worker, batch .. ':boot', ARGV[6] or '')
return { 'leased', batch, fence, tonumber(redis.call('HGET', ATTEMPTS, batch) or 0) }
