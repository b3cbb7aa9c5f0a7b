-- Dead batches get their attempts back, under their own number. Safe to repeat.
-- args: reason
-- result: the batches revived
local revived = {}
for _, batch in ipairs(redis.call('HKEYS', DEAD)) do
  redis.call('HDEL', DEAD, batch)
  redis.call('HDEL', ATTEMPTS, batch .. ':spent')
  tell(batch, ARGV[1])
  redis.call('ZADD', PENDING, order(batch), batch)
  revived[#revived + 1] = batch
end
table.sort(revived)
return revived
