-- A run becomes known. Safe to repeat.
-- args: fingerprint, queue, prompts, batches, the canary batch or '' (the others wait for it)
-- result: its fingerprint on record (another one than given: the name is taken)
local known = redis.call('HGET', RUN, 'fingerprint')
if known then return known end
redis.call('HSET', RUN, 'schema', SCHEMA, 'fingerprint', ARGV[1], 'queue', ARGV[2],
  'prompts', ARGV[3], 'batches', ARGV[4], 'state', 'active', 'reason', '',
  'created', now_ms(), 'kept_bytes', 0, 'waits_for', ARGV[5])
return ARGV[1]
