-- force: free the lock whoever holds it, or take it from one holder only; a run that loses it is told by whom.
-- KEYS: see promote
-- ARGV: 4 id ('' for any), 5 by (JSON; '' when the holder's process is known to be dead)
-- Returns: {1, entry of a holder or nil, how many} when freed; {0} when free; {2, id, entry or nil} when others hold it
local only, by = ARGV[4], ARGV[5]

local mark = look()
if type(mark) == 'table' then return mark end
if not mark or mark == FROZEN then return {0} end
local tokens = {mark}
if GROUP[mark] then tokens = redis.call('ZRANGE', holders, 0, -1) end

local entry = false
local out, entries = {}, {}
for _, token in ipairs(tokens) do
  if only == '' or only == id(token) then
    local lost = redis.call('HGET', meta, token)
    out[#out + 1], entries[#out + 1] = token, lost
    entry = lost or entry
  end
end
if #out == 0 then return {2, id(tokens[1]), redis.call('HGET', meta, tokens[1])} end

if #out == #tokens then
  set_free()
  mark = frozen > 0 and FROZEN
else
  for _, token in ipairs(out) do remove(token) end
  mark = regroup(mark)
  -- Written so that those who watch it look whether they were meant.
  redis.call('SET', lock, mark, 'KEEPTTL')
end
promote(mark)
for n, token in ipairs(out) do
  local lost = entries[n]
  note_ticket(token, lost)
  if lost and by ~= '' then
    log(token, lost, now, 'forced', by)
    -- Nobody would read it in another client's lock.
    if string.find(lost, '"instance":"', 1, true) then leave_word('forced', token, by) end
  else
    log_silent(token, lost, now)
  end
end
unlist()
return {1, entry, #out}
