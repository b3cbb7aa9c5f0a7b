#!lua flags=allow-oom
-- A worker that boots gives back what an earlier boot of its name on its host let run out: nobody
-- has to wait for a sweep then. A lease that has not run out may be held by a living worker, and is
-- left to the sweep. Safe to repeat.
-- args: worker, its boot, attempts allowed
-- result: the batches
local disowned = {}
local host, started = boot_of(ARGV[2])
for _, batch in ipairs(redis.call('ZRANGEBYSCORE', LEASED, '-inf', now_ms())) do
  local its_host, its_start = boot_of(redis.call('HGET', LEASES, batch .. ':boot'))
  if redis.call('HGET', LEASES, batch .. ':worker') == ARGV[1]
    and host and its_host == host and its_start < started then
    requeue(batch, ARGV[3], holder(batch) .. ' fell silent past its lease and was started anew')
    disowned[#disowned + 1] = batch
  end
end
return disowned
