// A client that isn't redlock: node-redlock on one server, in a loop, on the key of a lock.
//
// plain.js KEY NAME: as plain.py.

const fs = require('fs')
const path = require('path')
const Redis = require('ioredis')
const Redlock = require('redlock')

const DIR = process.env.CHAOS_DIR
const [KEY, NAME] = process.argv.slice(2)
const MS = 1000000n
// This clock stands still while the machine is suspended; by that much it is behind the others.
const BEHIND = BigInt(process.env.CHAOS_BEHIND)

const now = () => process.hrtime.bigint() + BEHIND
const sleep = ms => new Promise(done => setTimeout(done, ms))
const pick = all => all[Math.floor(Math.random() * all.length)]

function log(client, ttl, began, beats, error) {
  const periods = beats.map(([first, last]) => `${first}:${last}`).join(',')
  const { host, port } = client.options
  const wrong = error ? error.name : ''
  const line = `node-redlock@${host}:${port} ${process.pid} ${NAME} ${ttl} ${began} ${now()} ${periods} ${wrong}\n`
  fs.appendFileSync(path.join(DIR, 'plain.log'), line)
}

function connect() {
  const [host, port] = fs.readFileSync(path.join(DIR, 'plain'), 'ascii').split(/\s+/)
  const client = new Redis({
    host, port: Number(port), connectTimeout: 1000, commandTimeout: 1000, maxRetriesPerRequest: 0,
    enableOfflineQueue: true, retryStrategy: () => null
  })
  client.on('error', () => {})
  return client
}

// When a lease of a request that was sent then ends, by our clock.
const until = (began, ttl) => began + ttl - ttl / 20n - 10n * MS

async function hold(lock, ttl, began, beats) {
  const end = now() + BigInt(pick([1, 20, 200, Number(ttl / MS)])) * MS
  const deadline = until(began, ttl)
  for (let moment = now(); moment < end && moment < deadline; moment = now()) {
    const latest = beats[beats.length - 1]
    if (latest && moment - latest[1] <= 10n * MS) latest[1] = moment
    else beats.push([moment, moment])
    await sleep(2)
  }
  await lock.unlock()
}

async function turn(client) {
  const ttl = BigInt(300 + Math.floor(Math.random() * 2700)) * MS
  const redlock = new Redlock([client], { retryCount: 0 })
  redlock.on('clientError', () => {})
  const began = now()
  const beats = []
  const held = await client.exists(KEY)
  if (held) return
  try {
    const lock = await redlock.lock(KEY, Number(ttl / MS))
    await hold(lock, ttl, began, beats)
  } catch (error) {
    // It may have been acquired, or not be released.
    log(client, ttl, began, beats, error)
    throw error
  }
  log(client, ttl, began, beats)
}

async function main() {
  let client = null
  while (fs.existsSync(DIR) && !fs.existsSync(path.join(DIR, 'over'))) {
    try {
      client = client || connect()
      await turn(client)
    } catch {
      if (client) client.disconnect()
      client = null
    }
    await sleep(20 + Math.random() * 280)
  }
  process.exit(0)
}

main()
