-- Messages to waiters.

-- The entry of a waiter, "<dies at>:<heartbeat> <limit> <since> <listens> <who>"; it lives for three heartbeats.
local WAITER = '^(%d+):(%d+) (%d+) (%d+) ([012]) (.*)$'

-- The command that reaches a listening waiter, by its entry. In a cluster its channel belongs to the hash slot, and
-- the message stays on the slot's node.
local PUBLISH = {['1'] = 'PUBLISH', ['2'] = 'SPUBLISH'}

-- Sends a message to the waiter with this id and entry, so that it asks again.
local function send_message(id, entry, message)
  local _, _, _, _, listens = string.match(type(entry) == 'string' and entry or '', WAITER)
  return redis.pcall(PUBLISH[listens] or 'PUBLISH', channels .. id, message)
end

-- Sends a message to some waiters in a queue, by their ranks.
local function notify(line, first, last, message)
  for _, waiter in ipairs(redis.pcall('ZRANGE', line, first, last)) do
    send_message(id(waiter), redis.pcall('HGET', waiters, waiter), message)
  end
end
