-- Shared by every script. The keys of a run, always in this order (all carry the tag {run}):
--   1 run       hash    schema fingerprint queue state reason prompts batches fence kept_bytes
--                       waits_for (the canary batch, '' once it has passed) tolerated (a share)
--   2 pending   zset    batch -> order (oldest first)
--   3 leased    zset    batch -> end of the lease, server ms
--   4 leases    hash    batch -> fence; batch:worker, batch:boot, batch:begun
--   5 attempts  hash    batch -> attempts begun; batch:spent -> those since work was last kept
--   6 done      hash    batch -> object reference (JSON): the done-set
--   7 dead      hash    batch -> reason
--   8 story     hash    batch -> JSON list of what happened to it, newest last, 20 at most
--   9 counters  hash    name -> count over the done batches
-- Kept work of a batch lies under kept_key(batch): index:slot -> generation, index:v -> verdict,
-- index:sN -> the engine's N-th death while the prompt was in flight; bytes -> the size of it all.
-- `schema` is the version of the formats of all this (none: 1). A script refuses a run of a newer
-- major version, before it reads or writes anything else.
local SCHEMA = 1
local RUN, PENDING, LEASED, LEASES, ATTEMPTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local DONE, DEAD, STORY, COUNTERS = KEYS[6], KEYS[7], KEYS[8], KEYS[9]

local schema = #KEYS > 1 and redis.call('HGET', RUN, 'schema')
if schema and (tonumber(string.match(schema, '^%d+')) or math.huge) > SCHEMA then
  return redis.error_reply('NEWERFORMAT ' .. schema)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function kept_key(batch)
  return string.sub(RUN, 1, -4) .. 'kept:' .. batch
end

local function holds(batch, fence)
  return redis.call('HGET', LEASES, batch) == fence
end

-- A boot as it is written, HOST_ID:STARTED_MS:TOKEN: its host, when it started there, its token.
local function boot_of(text)
  local host, started, token = string.match(text or '', '^([^:]+):(%d+):([^:]+)$')
  return host, tonumber(started), token
end

-- Who holds the batch, for its story: the worker, and which boot of it on which host.
local function holder(batch)
  local worker = 'worker ' .. (redis.call('HGET', LEASES, batch .. ':worker') or '?')
  local host, _, token = boot_of(redis.call('HGET', LEASES, batch .. ':boot'))
  if not host then return worker end
  return worker .. ' (boot ' .. token .. ' on host ' .. string.sub(host, 1, 8) .. ')'
end

local function tell(batch, sentence)
  local known = redis.call('HGET', STORY, batch)
  local story = known and cjson.decode(known) or {}
  story[#story + 1] = { at = now_ms(), what = sentence }
  while #story > 20 do table.remove(story, 1) end
  redis.call('HSET', STORY, batch, cjson.encode(story))
end

local function order(batch)
  local number, revision = string.match(batch, '^batch%-(%d+)%.?r?(%d*)$')
  return tonumber(number) + (tonumber(revision) or 0) / 1000
end

local function drop_kept(batch)
  local bytes = tonumber(redis.call('HGET', kept_key(batch), 'bytes') or 0)
  if redis.call('DEL', kept_key(batch)) == 1 then
    redis.call('HINCRBY', RUN, 'kept_bytes', -bytes)
  end
end

-- The lease ends, however it ends; nobody will start from what a cancelled run kept.
local function unlease(batch)
  redis.call('ZREM', LEASED, batch)
  redis.call('HDEL', LEASES, batch, batch .. ':worker', batch .. ':boot', batch .. ':begun')
  if redis.call('HGET', RUN, 'state') == 'cancelled' then drop_kept(batch) end
end

-- The batch loses its lease: back to pending, or dead once its attempts are spent.
local function requeue(batch, limit, reason)
  unlease(batch)
  tell(batch, reason)
  if tonumber(redis.call('HGET', ATTEMPTS, batch .. ':spent') or 0) >= tonumber(limit) then
    redis.call('HSET', DEAD, batch, reason)
    return 'dead'
  end
  redis.call('ZADD', PENDING, order(batch), batch)
  return 'pending'
end
