-- The entry of a hold in meta, "<fence> <since> <limit> <slot> <waited> <phase> <who>".

-- The phase is granted (and not confirmed yet), held: (the replicas may not have it yet), held, guarded (work elsewhere has
-- joined it) or kept (its run is over). A number may be added: granted:<ticket of the waiter>,
-- guarded:<how many>, and kept:<until when at least (ms)> if the lock is kept for its guards.
local HOLD = '^((%d+) (%d+) (%d+) (%d+) %d+) (%l+)(:?)(%d*) ({.*)$'

-- The entry of a confirmed exclusive hold that no guard has joined.
local PLAIN_HOLD = '^%d+ %d+ 1 1 %d+ held {'

-- Returns the parts of an entry; all of them nil if it can't be read.
local function read_hold(entry)
  local start, fence, since, limit, slot, phase, mark, number, who = string.match(type(entry) == 'string' and entry or '', HOLD)
  return {start = start, fence = fence, since = since, limit = limit, slot = slot, phase = phase, mark = mark, number = number, who = who}
end

-- Returns true if the run of a hold is at work, by its entry.
local function is_at_work(entry)
  local phase = read_hold(entry).phase
  return phase == 'held' or phase == 'guarded'
end

-- Returns the fence of a hold; 0 without an entry.
local function fence_of(entry) return tonumber(string.match(entry or '', '^%d+') or 0) end
