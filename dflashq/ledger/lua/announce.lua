#!lua flags=allow-oom
-- A worker takes its name, or says under it that it lives. Safe to repeat.
-- A name belongs to one boot. Another boot gets it only when that one was silent for a lease time, or
-- is known to be gone: whoever compares and writes in two steps takes the name of the living.
-- allow-oom: a full Redis must not make the living look dead, and it is one row a worker.
-- keys: 1 workers  hash  worker -> {"seen_ms":server ms,"boot":...} (JSON)
-- args: worker, boot, lease ms, row (JSON; '' leaves the row as it is), the boot known to be gone or ''
-- result: 1 no other boot has the name, 0 one has
local WORKERS, worker, boot, row = KEYS[1], ARGV[1], ARGV[2], ARGV[4]
local known = redis.call('HGET', WORKERS, worker)
local last = known and cjson.decode(known) or { boot = boot }
local its = last.boot or ''
if its ~= boot and (its == '' or its ~= ARGV[5]) and now_ms() - last.seen_ms < tonumber(ARGV[3]) then
  return 0
end
if row == '' then
  -- What nobody has now is taken with the next row, which says who has it.
  if not known or its ~= boot then return 1 end
  row = '{' .. string.match(known, '^{"seen_ms": ?%d+, ?(.*)$')
end
local seen = string.format('{"seen_ms":%.0f,', now_ms())
redis.call('HSET', WORKERS, worker, seen .. string.sub(row, 2))
return 1
