// Every lesson's lines natively and by WebAssembly under node: the same outcome, and the same numbers, as a lesson shows
// them, where NATIVE-REPLAY was built with -Dblas=none and runs with TN_SIMD=baseline, so that sums are added in the same
// order. A lesson with an embedding begins with normal numbers, of which the two C libraries round some otherwise: there
// the same numbers on a first batch alone, and those that differ later are told.
// usage: node tests/page/lessons_check.js NATIVE-REPLAY REPLAY.js DIGITS TEXT
'use strict';

const { execFileSync } = require('child_process');
const { readFileSync } = require('fs');
const { join } = require('path');

const [native, script, ...data] = process.argv.slice(2);
const source = readFileSync(join(__dirname, '../../page/lessons.js'), 'utf8');
const lessons = new Function(`${source}; return LESSONS;`)();

// A number as the page writes it: engine.js's digits and percent, and what they call.
const page = (path) => readFileSync(join(__dirname, '../..', path), 'utf8').replace("'use strict';", '');
const shown = new Function(`${page('src/ext/trace/page/elements.js')}; ${page('page/engine.js')};
  return (key, x) => (key === 'accuracy' ? percent(x) : digits(x));`)();

// What each part of a lesson gives, as the page collects it.
function play(program, before, lesson) {
  const lines = [...lesson.stage];
  for (const part of lesson.run) {
    lines.push(...part.lines.map((line) => (line === part.refused ? `refused ${line}` : line)));
    for (const what of Object.values(part.numbers || {})) lines.push(`number ${what}`);
    for (const what of Object.values(part.keep || {})) lines.push(`values ${what}`);
  }
  const input = lines.join('\n') + '\n';
  const out = execFileSync(program, [...before, ...data], { input, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'] });
  const said = out.trim().split('\n');
  return lesson.run.map((part) => {
    const got = {};
    if (part.refused) got.said = said.shift();
    for (const key of Object.keys(part.numbers || {})) got[key] = Number(said.shift().split(' ').pop());
    for (const key of Object.keys(part.keep || {})) got[key] = said.shift().split(' ').map(Number);
    return got;
  });
}

let passed = 0, failed = 0, alike = 0, exact = 0;
const unlike = [];
function check(what, right, told) {
  if (right) passed++;
  else {
    failed++;
    console.log(`${what}: ${told}`);
  }
}

const equal = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));
const near = (a, b) => Math.abs(a - b) <= 1e-4 * Math.max(Math.abs(a), Math.abs(b)) + 1e-6;
function compare(lesson, where, key, x, y) {
  const told = `${shown(key, x)}, ${shown(key, y)}`, same = shown(key, x) === shown(key, y);
  if (equal(x, y)) exact++;
  if (same) alike++;
  else unlike.push(`${lesson.name}, ${where}: ${key} ${told}`);
  if (!lesson.stage.some((line) => line.startsWith('layer embedding'))) check(`${lesson.name}, ${where}: ${key}`, same, told);
}

for (const lesson of lessons) {
  const here = play(native, [], lesson), there = play(process.execPath, [script], lesson);
  const again = play(process.execPath, [script], lesson);
  check(`${lesson.name}: the same bits again`, JSON.stringify(there) === JSON.stringify(again), 'other numbers');
  const [a, b] = [lesson.answer(here), lesson.answer(there)];
  check(`${lesson.name}: the outcome`, a === b, `${a} natively, ${b} by WebAssembly`);
  lesson.run.forEach((part, i) => Object.keys(part.numbers || {})
    .forEach((key) => compare(lesson, part.label, key, here[i][key], there[i][key])));
  for (let i = 0; i < here.length && !lesson.run[i].lines.some((line) => line.startsWith('step ')); i++)
    for (const key of Object.keys(lesson.run[i].numbers || {})) {
      const [x, y] = [here[i][key], there[i][key]];
      check(`${lesson.name}: ${lesson.run[i].label}: ${key}`, near(x, y) || equal(x, y), `${x}, ${y}`);
    }
}
console.log(`${alike} of ${alike + unlike.length} numbers have the same digits where a lesson shows them, ${exact} the same bits; others:`);
console.log(unlike.join('\n'));
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
