-- Dead batches get their attempts back, under their own number. Safe to repeat.
-- args: reason, then batch... (none: all that are dead)
-- result: the batches revived
local revived, asked = {}, {}
for i = 2, #ARGV do asked[ARGV[i]] = true end
for _, batch in ipairs(redis.call('HKEYS', DEAD)) do
  if #ARGV == 1 or asked[batch] then
    redis.call('HDEL', DEAD, batch)
    redis.call('HDEL', ATTEMPTS, batch .. ':spent')
    tell(batch, ARGV[1])
    redis.call('ZADD', PENDING, order(batch), batch)
    revived[#revived + 1] = batch
  end
end
table.sort(revived)
return revived
