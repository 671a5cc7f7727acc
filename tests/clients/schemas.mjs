// What schemas' grammars let through is judged by Ajv: random walks of every schema that compiles.
// usage: node schemas.mjs SCHEMA_WALKS WALKS [FILE.jsonl.gz...]    without files: what zod writes
// Lines of a file: {"id", "schema"}. Prints how many compile, what compiling took, why the others are refused, and every
// walk that Ajv refuses. Exits with 1 if there is any.
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import readline from 'node:readline';
import zlib from 'node:zlib';
import Ajv from 'ajv';
import Ajv2020 from 'ajv/dist/2020.js';
import Ajv4 from 'ajv-draft-04';
import addFormats from 'ajv-formats';
import { z } from 'zod';

const [program, walks, ...files] = process.argv.slice(2);

/// Unicode 16 took places that are not used yet out of Extended_Pictographic: from there on, Node's verdict on zod's
/// emoji is another than that of the tables which the grammar is made of.
const newerUnicode = parseInt(process.versions.unicode) >= 16;

/// Drafts 4 to 7 pass over what stands beside a $ref; Ajv does not.
function withLoneReferences(part) {
  if (typeof part !== 'object' || part === null) return part;
  if (Array.isArray(part)) return part.map(withLoneReferences);
  const kept = typeof part.$ref === 'string' ? ['$ref', 'definitions', '$defs'] : Object.keys(part);
  return Object.fromEntries(Object.entries(part).filter(([key]) => kept.includes(key)).map(([key, value]) => [key, withLoneReferences(value)]));
}

/// Ajv's verdict on a value, by the draft that the schema names; null where Ajv cannot use the schema.
function judge(schema, more = {}) {
  const draft = typeof schema === 'object' && schema !== null ? String(schema.$schema ?? '') : '';
  const old = /draft-0[4-7]/.test(draft);
  const Draft = /draft-04/.test(draft) ? Ajv4 : old ? Ajv : Ajv2020;
  for (const unicodeRegExp of [true, false]) {
    const ajv = new Draft({ strict: false, logger: false, unicodeRegExp, validateSchema: false, ownProperties: true, ...more });
    addFormats(ajv);
    try {
      return ajv.compile(typeof schema === 'object' ? { ...(old ? withLoneReferences(schema) : schema), $schema: undefined } : schema);
    } catch {
      continue;
    }
  }
  return null;
}

async function check(name, lines) {
  const child = spawn(program, [walks], { stdio: ['pipe', 'pipe', 'inherit'] });
  const schemas = new Map(lines.map((line) => [line.id, line.schema]));
  const told = { compiled: 0, walks: 0, unjudged: 0, endless: 0, wrong: 0, times: [], reasons: new Map() };
  (async () => {
    for (const { id, schema } of lines)
      if (!child.stdin.write(JSON.stringify({ id, schema }) + '\n')) await new Promise((go) => child.stdin.once('drain', go));
    child.stdin.end();
  })();
  for await (const line of readline.createInterface({ input: child.stdout })) {
    const { id, us, error, failed, walks: texts } = JSON.parse(line);
    told.times.push(us);
    if (error !== undefined) {
      const reason = error.replace(/^\S*?: /, '').replace(/[0-9]+/g, 'N');
      told.reasons.set(reason, (told.reasons.get(reason) ?? 0) + 1);
      if (files.length === 0) console.log(`    ${id} is refused: ${error}`);
      continue;
    }
    told.compiled++;
    const broken = failed.filter((what) => !what.includes('no end:'));  // a pattern that random letters do not meet
    told.endless += failed.length - broken.length;
    told.wrong += broken.length;
    for (const what of broken) console.log(`    ${id}: ${what.slice(0, 300)}`);
    const valid = id === 'emoji' && newerUnicode ? null : judge(schemas.get(id));
    if (valid === null) {
      told.unjudged++;
      continue;
    }
    for (const text of texts) {
      told.walks++;
      const value = JSON.parse(text);
      if (valid(value)) continue;
      // 9.12 / 0.01 is 911.9999999999999 in doubles: then a quotient that is whole to nine decimals will do.
      if (valid.errors[0].keyword === 'multipleOf' && judge(schemas.get(id), { multipleOfPrecision: 9 })(value)) continue;
      told.wrong++;
      console.log(`    ${id}: ${text.slice(0, 300)} is let through; ${JSON.stringify(valid.errors?.[0]).slice(0, 300)}`);
    }
  }
  told.times.sort((a, b) => a - b);
  const part = (share) => told.times[Math.min(told.times.length - 1, Math.floor(share * told.times.length))] / 1000;
  console.log(`${name}: ${told.compiled} of ${lines.length} compile (${((100 * told.compiled) / lines.length).toFixed(1)} %), ` +
    `in ${part(0.5)} ms, 99 % in ${part(0.99)}, the longest ${part(1)}; ${told.walks} walks, ${told.wrong} wrong, ${told.endless} without an end; ` +
    `Ajv does not judge ${told.unjudged} of the schemas`);
  for (const [reason, count] of [...told.reasons].sort((a, b) => b[1] - a[1]).slice(0, 20)) console.log(`    ${count} x ${reason}`);
  return told;
}

/// Every type that zod writes as JSON Schema, by name.
function zodTypes() {
  const s = z.string();
  const types = {
    string: s, 'string.min': s.min(2), 'string.max': s.max(5), 'string.length': s.length(3), 'string.regex': s.regex(/^[a-z]{2,4}$/),
    'string.includes': s.includes('ab'), 'string.startsWith': s.startsWith('ab'), 'string.endsWith': s.endsWith('ab'),
    'string.uppercase': s.uppercase(), 'string.lowercase': s.lowercase(), 'string.two': s.startsWith('a').endsWith('b'), 'string.trim': s.trim(),
    email: z.email(), 'email.max': z.email().max(40), guid: z.guid(), uuid: z.uuid(), uuidv4: z.uuidv4(), uuidv6: z.uuidv6(), uuidv7: z.uuidv7(),
    url: z.url(), httpUrl: z.httpUrl?.(), hostname: z.hostname?.(), emoji: z.emoji(), nanoid: z.nanoid(), cuid: z.cuid(), cuid2: z.cuid2(),
    ulid: z.ulid(), xid: z.xid(), ksuid: z.ksuid(), ipv4: z.ipv4(), ipv6: z.ipv6(), mac: z.mac?.(), cidrv4: z.cidrv4(), cidrv6: z.cidrv6(),
    base64: z.base64(), base64url: z.base64url(), hex: z.hex?.(), e164: z.e164(), jwt: z.jwt(), sha256: z.hash?.('sha256'),
    'iso.date': z.iso.date(), 'iso.time': z.iso.time(), 'iso.datetime': z.iso.datetime(), 'iso.datetime.offset': z.iso.datetime({ offset: true }),
    'iso.duration': z.iso.duration(), templateLiteral: z.templateLiteral(['v', z.int(), '.', z.enum(['a', 'b'])]),
    number: z.number(), 'number.min': z.number().min(1.5), 'number.gt': z.number().gt(0), 'number.range': z.number().min(-1e-12).max(1e21),
    'number.multipleOf': z.number().multipleOf(0.25), int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(),
    float64: z.float64(), positive: z.int().positive(), boolean: z.boolean(), null: z.null(), any: z.any(), unknown: z.unknown(),
    enum: z.enum(['a', 'b']), literal: z.literal('x'), 'literal.many': z.literal(['x', 1, true, null]), object: z.object({ a: s, b: z.int().optional() }),
    strictObject: z.strictObject({ a: s }), looseObject: z.looseObject({ a: s }), catchall: z.object({ a: s }).catchall(z.int()),
    record: z.record(s, z.int()), 'record.enum': z.record(z.enum(['a', 'b']), z.int()), partialRecord: z.partialRecord(z.enum(['a', 'b']), z.int()),
    array: z.array(s), 'array.range': z.array(z.int()).min(1).max(3), tuple: z.tuple([s, z.int()]), 'tuple.rest': z.tuple([s], z.int()),
    union: z.union([s, z.int()]), discriminatedUnion: z.discriminatedUnion('k', [z.object({ k: z.literal('a'), v: s }), z.object({ k: z.literal('b') })]),
    intersection: z.intersection(z.object({ a: s }), z.object({ b: z.int() })), optional: z.object({ a: s.optional() }), nullable: s.nullable(),
    nullish: z.object({ a: s.nullish() }), default: s.default('x'), prefault: s.prefault('x'), catch: s.catch('x'), readonly: s.readonly(),
    pipe: s.pipe(z.string()), json: z.json(), recursive: z.object({ name: s, get all() { return z.array(types.recursive); } }), brand: s.brand('B'),
    describe: s.describe('words'), meta: s.meta({ title: 'T', examples: ['x'] }), never: z.object({ a: z.never().optional() }),
  };
  return Object.entries(types).filter(([, type]) => type !== undefined);
}

let wrong = 0;
for (const file of files) {
  const lines = zlib.gunzipSync(fs.readFileSync(file)).toString().trim().split('\n').map((line) => JSON.parse(line));
  wrong += (await check(file.replace(/.*\//, ''), lines)).wrong;
}
if (files.length === 0)
  for (const target of ['draft-2020-12', 'draft-7', 'openapi-3.0']) {
    const lines = zodTypes().map(([id, type]) => ({ id, schema: z.toJSONSchema(type, { target }) }));
    const told = await check(`zod, ${target}`, lines);
    wrong += told.wrong + lines.length - told.compiled;
  }
process.exit(wrong === 0 ? 0 : 1);
