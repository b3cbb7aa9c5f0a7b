#!lua flags=allow-oom
-- A worker that boots gives back what its dead predecessor of the same name held. Safe to repeat.
-- args: worker, attempts allowed
-- result: the batches
local disowned = {}
for _, batch in ipairs(redis.call('ZRANGE', LEASED, 0, -1)) do
  if redis.call('HGET', LEASES, batch .. ':worker') == ARGV[1] then
    requeue(batch, ARGV[2], 'worker ' .. ARGV[1] .. ' died and came back')
    disowned[#disowned + 1] = batch
  end
end
return disowned
