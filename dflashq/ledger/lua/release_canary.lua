#!lua flags=allow-oom
-- The canary has passed, or somebody takes its result as it is: the other batches may go.
-- Safe to repeat.
-- args: the share of rejected prompts that is tolerated from now on, or '' to leave it
-- result: 1 for a known run
if redis.call('EXISTS', RUN) == 0 then return 0 end
redis.call('HSET', RUN, 'waits_for', '')
if ARGV[1] ~= '' then redis.call('HSET', RUN, 'tolerated', ARGV[1]) end
return 1
