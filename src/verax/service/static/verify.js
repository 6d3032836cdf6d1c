// Checks a receipt as docs/receipts.md says, with the browser's own SHA-256 and Ed25519; nothing is sent anywhere.
const bytes = (text) => new TextEncoder().encode(text);
const hex = (buffer) => [...new Uint8Array(buffer)].map((b) => b.toString(16).padStart(2, "0")).join("");
const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array(parts.flatMap((p) => [...p]))));
const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const unbase = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const same = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);

// the one text that is hashed: ASCII, keys in order, no blanks
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value && typeof value === "object") {
    return `{${Object.keys(value).sort().map((k) => `${canonical(k)}:${canonical(value[k])}`).join(",")}}`;
  }
  return JSON.stringify(value).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function parse(text) {
  const [above, ...rest] = text.split("\n\n");
  const lines = above.split("\n"), note = rest.join("\n\n");
  const mended = lines[0] === "c2sp.org/tlog-proof@v1" && lines[1]?.startsWith("extra ") && lines[2]?.startsWith("index ");
  const cut = note.indexOf("\n\n");
  if (!mended || cut < 0) throw new Error("this is no receipt; give the file that verax receipt get wrote");
  const extra = JSON.parse(new TextDecoder().decode(unbase(lines[1].slice(6))));
  const [origin, size, root] = note.slice(0, cut).split("\n");
  const signatures = note.slice(cut + 2).split("\n").filter(Boolean).map((line) => {
    const [, name, held] = line.match(/^\u2014 (\S+) (\S+)$/) ?? [];
    return name && { name, held: unbase(held) };
  });
  return {
    extra, index: Number(lines[2].slice(6)), proof: lines.slice(3).filter(Boolean).map(unbase), origin,
    size: Number(size), root: unbase(root), text: note.slice(0, cut + 1), signatures: signatures.filter(Boolean),
  };
}

// RFC 9162, 2.1.3.2
async function isIncluded({ extra, index, size, proof, root }) {
  if (!(Number.isSafeInteger(index) && index >= 0 && index < size)) return false;
  let at = BigInt(index), last = BigInt(size) - 1n, found = await sha256([0], bytes(extra.leaf));
  for (const beside of proof) {
    if (last === 0n) return false;
    if (at & 1n || at === last) {
      found = await sha256([1], beside, found);
      while (!(at & 1n) && at !== 0n) { at >>= 1n; last >>= 1n; }
    } else found = await sha256([1], found, beside);
    at >>= 1n; last >>= 1n;
  }
  return last === 0n && same(found, root);
}

async function isSigned(key, signature, text) {
  const held = await crypto.subtle.importKey("raw", unhex(key), "Ed25519", false, ["verify"]);
  return crypto.subtle.verify("Ed25519", held, signature, bytes(text));
}

// the operator signs the log plainly, and with the time: both must hold
async function signedAt({ signatures, origin, text }, key) {
  let plain = false, at = null;
  for (const kind of [1, 4]) {
    const id = (await sha256(bytes(`${origin}\n`), [kind], unhex(key))).slice(0, 4);
    for (const { name, held } of signatures.filter((s) => s.name === origin && same(s.held.slice(0, 4), id))) {
      if (kind === 1) plain ||= await isSigned(key, held.slice(4), text);
      else {
        const seconds = new DataView(held.buffer, held.byteOffset + 4, 8).getBigUint64(0);
        if (await isSigned(key, held.slice(12), `cosignature/v1\ntime ${seconds}\n${text}`)) at = Number(seconds);
      }
    }
  }
  return plain && at !== null ? new Date(at * 1000) : null;
}

function rowsOf(text) {
  const lines = text.replace(/^\ufeff/, "").split(/\r?\n/).filter((line) => line.trim());
  const cells = (line) => [...line.matchAll(/("(?:[^"]|"")*"|[^,]*)(?:,|$)/g)].map((m) => m[1].replace(/^"|"$/g, "").replaceAll('""', '"').trim());
  const [head, ...rest] = lines.map(cells);
  const task = head.indexOf("task"), label = head.indexOf("label");
  if (task < 0 || label < 0) throw new Error("the report has no columns task and label");
  return new Map(rest.map((row) => [row[task], row[label]]));
}

async function isCommitted(receipt, said, report) {
  const { asked, nonce } = receipt.extra, rows = rowsOf(report);
  const labels = asked.tasks.map((task) => asked.classes.indexOf(rows.get(task) ?? "\u0000"));
  const content = canonical([said.round, said.body.agent, { labels }, nonce]);
  return hex(await sha256(bytes(content))) === said.body.commitment;
}

async function* findings(text, report, operator) {
  const receipt = parse(text), said = JSON.parse(receipt.extra.leaf), key = operator || receipt.extra.operator;
  if (said.kind !== "submit") throw new Error("the receipt's entry is no submission");
  yield [said.seq === receipt.index + 1, `entry ${said.seq} of ${receipt.origin} is the submission of ${said.body.agent} to round ${said.round}, recorded at ${said.at}, with the commitment ${said.body.commitment}`];
  yield [await isIncluded(receipt), `the entry is in the log of ${receipt.size} entries with the root ${hex(receipt.root)}`];
  const at = await signedAt(receipt, key);
  yield [at !== null, `the log was signed so by the operator's key ${key.slice(0, 16)}${at ? ` at ${at.toISOString()}` : ""}`];
  if (!operator) yield [null, "the key is as the receipt names it: compare it with the one that the operator is known by"];
  if (report && !receipt.extra.nonce) yield [null, "the receipt has no nonce, so that no report can be compared; get one with verax remote submit --receipt, or when the round is settled"];
  else if (report) yield [await isCommitted(receipt, said, report), "the report is what was handed in and committed to"];
}

const words = { true: ["holds", "holds"], false: ["fails", "does not hold"], null: ["undecided", "not told"] };
const textOf = async (id) => document.getElementById(id).files[0]?.text();

document.getElementById("check").addEventListener("submit", async (event) => {
  event.preventDefault();
  const list = document.getElementById("list"), verdict = document.getElementById("verdict");
  list.replaceChildren();
  document.getElementById("findings").hidden = false;
  try {
    const found = [];
    const operator = document.getElementById("operator").value.trim().toLowerCase();
    for await (const each of findings(await textOf("receipt"), await textOf("report"), operator)) found.push(each);
    for (const [holds, said] of found) {
      const row = document.createElement("li"), badge = document.createElement("span"), text = document.createElement("span");
      badge.className = `badge ${words[holds][0]}`;
      badge.textContent = words[holds][1];
      text.textContent = said;
      row.append(badge, text);
      list.append(row);
    }
    const failed = found.some(([holds]) => holds === false);
    verdict.textContent = failed ? "This receipt does not hold. Keep the file: it is evidence." : "This receipt holds.";
    verdict.dataset.verdict = failed ? "fails" : "holds";
  } catch (error) {
    verdict.textContent = error.name === "NotSupportedError" ? "This browser has no Ed25519; use verax receipt verify." : `This cannot be read: ${error.message}.`;
    verdict.dataset.verdict = "fails";
  }
});
