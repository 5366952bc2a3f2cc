/*
 * lessons.js - the lessons as data: lines for the engine, what to ask, which numbers to read, what
 * to say. Under node it prints the lines and names as JSON, for a program that runs them natively.
 *
 * stage: lines before the question. run: parts, each { label, lines, numbers: { key: a name of
 * live_number }, keep: { key: a name of live_values }, refused: the line that the engine refuses }. answer, text: functions of what the parts
 * gave, in order; said is what the engine said where it refused a line or a buffer.
 */
'use strict';

const PLAIN = ['decay 0', 'clip 0', 'warmup 0', 'no_decay_on_norms off', 'mode train', 'judge eval'];

/* The lines that make a model: data, layers, optimizer, and what else differs. */
const stageOf = (data, layers, optimizer, ...more) => ['seed 1', `data ${data}`, 'model',
    ...layers.map((l) => `layer ${l}`), ...PLAIN, `optimizer ${optimizer}`, 'batch 32', ...more, 'build'];

const repeated = (n, ...layers) => Array.from({ length: n }, () => layers).flat();
const BLOCK = ['embedding 32', 'table', 'block 4', 'layer_norm'];

const farthest = (a, b) => a.reduce((most, v, i) => Math.max(most, Math.abs(v - b[i])), 0);
const least = (xs) => xs.indexOf(Math.min(...xs));

const NET = {
    bias: ['linear 16', 'batch_norm', 'relu', 'linear 16', 'relu'],
    sigmoid: repeated(5, 'linear 16', 'sigmoid'),
    relu: repeated(5, 'linear 16', 'relu'),
    norms: repeated(5, 'linear 16', 'batch_norm', 'sigmoid'),
    single: ['linear 16', 'batch_norm', 'relu'],
    dropped: repeated(2, 'linear 32', 'batch_norm', 'relu', 'dropout 0.3'),
    decayed: repeated(2, 'linear 32', 'batch_norm', 'relu'),
    steep: repeated(3, 'linear 32', 'relu'),
    plain: repeated(2, 'linear 32', 'tanh'),
};

const judgedBy = (label, judge, n) => ({ label, lines: [`judge ${judge}`, `evaluate ${n}`], numbers: { loss: 'test_loss', accuracy: 'test_accuracy' } });

const LESSONS = [
    {
        name: 'bias', title: 'A bias before batch norm', show: 'gradients',
        intro: 'Layer 0 is linear, with a bias: one number for each of its 16 outputs (channels). Batch norm follows it. One batch goes forward and backward. Then SGD takes 201 steps, the first of them with that batch.',
        stage: stageOf('spirals', NET.bias, 'sgd 0.1'),
        ask: 'How large is the gradient of layer 0’s bias, compared with that of its weight?',
        choices: ['about as large', 'about a tenth', 'zero, but for rounding'],
        run: [
            { label: 'first batch', lines: ['forward', 'backward'], numbers: { bias: 'grad 0.bias', weight: 'grad 0.weight', later: 'grad 3.bias' } },
            { label: 'after 201 steps', lines: ['update', 'step 200', 'evaluate'],
                numbers: { movedBias: 'moved 0.bias', movedWeight: 'moved 0.weight', movedLater: 'moved 3.bias', shift: 'moved 1.bias' } },
        ],
        answer: ([a]) => (a.bias < 1e-4 * a.weight ? 2 : a.bias < 0.3 * a.weight ? 1 : 0),
        text: ([a, b], d) => `Batch norm subtracts each channel’s mean over the batch. A bias adds the same number to the whole channel, so it is subtracted again, and the loss does not depend on it. Its gradient is zero but for rounding: its length (norm) is ${d(a.bias)}, that of the weight’s gradient ${d(a.weight)}. After 201 steps the bias has moved by ${d(b.movedBias)}, the weight by ${d(b.movedWeight)}. Layer 3’s bias has no batch norm after it and moved by ${d(b.movedLater)}. Batch norm adds a bias of its own after it subtracts (1.bias, moved by ${d(b.shift)}); so a layer before it needs none.`,
    },
    {
        name: 'vanishing', title: 'Vanishing gradients', show: 'gradients',
        intro: 'Five linear layers with 16 outputs, each followed by a sigmoid, 1 / (1 + e⁻ˣ), then the output layer; on the circles. The gradient comes back through all five sigmoids.',
        stage: stageOf('circles', NET.sigmoid, 'adam 0.01', 'batch 64'),
        ask: 'On the first batch, how many times smaller is the gradient of the first layer’s weight than that of the output layer’s?',
        choices: ['about 10 times', 'about 1,000 times', 'more than 10,000 times'],
        run: [
            ...[['sigmoid', NET.sigmoid, 10], ['relu', NET.relu, 10], ['batch norm', NET.norms, 15]].map(([label, layers, last]) => ({
                label, lines: [...stageOf('circles', layers, 'adam 0.01', 'batch 64'), 'forward', 'backward'],
                numbers: { first: 'grad 0.weight', last: `grad ${last}.weight` } })),
            ...[['sigmoid, 300', NET.sigmoid], ['relu, 300', NET.relu]].map(([label, layers]) => ({
                label, lines: [...stageOf('circles', layers, 'adam 0.01', 'batch 64'), 'step 300', 'evaluate'], numbers: { accuracy: 'train_accuracy' } })),
        ],
        answer: ([a]) => (a.last > 1e4 * a.first ? 2 : a.last > 100 * a.first ? 1 : 0),
        text: ([a, r, b, s, t], d, p) => `The slope of a sigmoid is at most 1/4, so five leave at most 1/1,024. Five weights multiply too, and they are small at first. Together: ${d(a.first)} at the first layer, ${d(a.last)} at the last, ${d(Math.round(a.last / a.first))} times as much. The slope of relu is 0 or 1; there the ratio is ${d(r.last / r.first)}, which comes from the weights and the zeros. Batch norm divides by the standard deviation before each sigmoid, which makes up for small weights: ${d(b.first)} and ${d(b.last)}. After 300 steps of Adam, ${p(s.accuracy)} of the training points are right with sigmoid, ${p(t.accuracy)} with relu.`,
    },
    {
        name: 'single', title: 'Batch norm and a batch of one', show: 'picture',
        intro: 'Batch norm takes the mean and variance of each channel over the batch, subtracts the mean and divides by the root of the variance. Now the batch is one point.',
        stage: stageOf('spirals', NET.single, 'sgd 0.1', 'batch 1'),
        ask: 'What does a training step do?',
        choices: ['it trains, noisily', 'every channel becomes 0 and it trains on that', 'the library refuses'],
        run: [
            { label: 'batch of 1', lines: ['step'], refused: 'step', numbers: { moved: 'moved 1.running_mean' } },
            { label: '1, eval', lines: ['mode eval', 'step'], numbers: { loss: 'loss', moved: 'moved 1.running_mean', weight: 'moved 0.weight' } },
            { label: 'batch of 2', lines: ['mode train', 'batch 2', 'step'], numbers: { loss: 'loss', moved: 'moved 1.running_mean', weight: 'moved 0.weight' } },
        ],
        answer: ([a]) => (a.said ? 2 : 0),
        text: ([a, e, b], d) => `A single value is its own mean and has no variance: every channel would be 0 whatever the input, and layer 0 could learn nothing. The library refuses, as PyTorch does. In eval mode the running mean and variance take the place of the batch’s: the step goes through (loss ${d(e.loss)}), the weight moves, and the running mean stays where it was (moved by ${d(e.moved)}). With two points there is a variance, though a poor estimate, and forward moves the running mean (by ${d(b.moved)}). An image gives each channel many values, so there a batch of one image is enough.`,
    },
    {
        name: 'eval', title: 'Eval mode forgotten', show: 'both',
        intro: 'A net with batch norm and dropout (it sets 30 % of the values to 0, drawn anew each time) trains for 1,000 steps. Then it is judged on 100 and on 10 test points, in eval mode and, by mistake, in train mode.',
        stage: stageOf('spirals', NET.dropped, 'adam 0.01'),
        ask: 'Ten test points are judged in train mode. What happens to the loss?',
        choices: ['it is the same as in eval mode', 'it is higher than in eval mode', 'it is lower than in eval mode'],
        run: [{ label: 'eval, 100', lines: ['step 1000', 'judge eval', 'evaluate 100'], numbers: { loss: 'test_loss', accuracy: 'test_accuracy' } },
            judgedBy('train, 100', 'train', 100), judgedBy('eval, 10', 'eval', 10), judgedBy('train, 10', 'train', 10)],
        answer: ([, , e, t]) => (Math.abs(t.loss - e.loss) < 1e-6 ? 0 : t.loss > e.loss ? 1 : 2),
        text: ([e, t, e10, t10], d, p) => `In train mode dropout still drops, and batch norm takes the mean and variance of whatever points are judged together. With 100 test points the loss is ${d(t.loss)} in place of ${d(e.loss)}; accuracy (${p(t.accuracy)} in place of ${p(e.accuracy)}) may go either way by chance. Ten points give a poor mean and variance: the loss is ${d(t10.loss)} in place of ${d(e10.loss)}, accuracy ${p(t10.accuracy)} in place of ${p(e10.accuracy)}. In train mode the answer for a point depends on the other points of the batch and on chance; in eval mode on the point alone.`,
    },
    {
        name: 'table', title: 'A table of positions', show: 'picture',
        intro: 'Each character becomes 32 numbers, its embedding. In the transformer block, attention gives each character a weighted sum over itself and those before it. One model adds a table of positions to the embeddings, the other has none. Both train for 150 steps.',
        stage: stageOf('text', BLOCK, 'adam 0.005', 'batch 8'),
        ask: 'The model reads “the” or “hte” and gives a probability to each next character. Does the one without a table tell the two apart?',
        choices: ['yes, attention sees the order', 'no, its answers are the same'],
        run: [
            { label: 'no table', lines: [...stageOf('text', BLOCK.filter((l) => l !== 'table'), 'adam 0.005', 'batch 8'), 'step 150', 'evaluate 8'],
                numbers: { loss: 'test_loss' }, keep: { the: 'next the', hte: 'next hte' } },
            { label: 'table', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8'), 'step 150', 'evaluate 8', 'give 1.pe'],
                numbers: { loss: 'test_loss', moved: 'moved 1.pe', weight: 'moved 0.weight' }, keep: { the: 'next the', hte: 'next hte' } },
        ],
        answer: ([a]) => (farthest(a.the, a.hte) < 1e-4 ? 1 : 0),
        text: ([a, b], d) => `A weighted sum has no order. In both texts the last “e” looks at the same three characters, so without a table the probabilities of the next one differ by at most ${d(farthest(a.the, a.hte))}; with it by up to ${d(farthest(b.the, b.hte))}. That is still little after 150 steps, and the test loss does not show it yet. (With two blocks the model could tell some of the order without a table, for each character looks only back.) The table, fixed sines and cosines, is a buffer: it moved by ${d(b.moved)}, the embedding by ${d(b.weight)}. At the end it was given to an optimizer, which refused: see the message.`,
    },
    {
        name: 'decay', title: 'Weight decay and norms', show: 'picture',
        intro: 'Weight decay: each step also pulls every number a little towards 0. Here it is strong, 0.01, with SGD and momentum on a net with batch norm. In one run it pulls on all parameters, in the other only on the weights of linear layers.',
        stage: stageOf('spirals', NET.decayed, 'momentum 0.05 0.01'),
        ask: 'Which model fits the training points better after 1,000 steps?',
        choices: ['decay on everything', 'decay on weights only', 'no difference, within 0.02 of loss'],
        run: ['off', 'on'].map((spare) => ({ label: spare === 'off' ? 'on everything' : 'on weights only',
            lines: [...stageOf('spirals', NET.decayed, 'momentum 0.05 0.01', `no_decay_on_norms ${spare}`), 'step 1000', 'evaluate'],
            numbers: { gain: 'norm 1.weight', gain2: 'norm 4.weight', weight: 'norm 0.weight', loss: 'train_loss', accuracy: 'train_accuracy' } })),
        answer: ([a, b]) => (Math.abs(a.loss - b.loss) < 0.02 ? 2 : a.loss < b.loss ? 0 : 1),
        text: ([a, b], d, p) => `Decay on a linear weight before batch norm does not change what the layer can say: batch norm divides the weight’s size out. Decay on batch norm’s own weight does: that is the scale of each channel, and after the last batch norm nothing divides it out. The lengths (norms) of 1.weight and 4.weight are ${d(Math.sqrt(32))} at first. With decay they fell to ${d(a.gain)} and ${d(a.gain2)}; without, they are ${d(b.gain)} and ${d(b.gain2)}. Of the training points ${p(a.accuracy)} are right with decay on everything, ${p(b.accuracy)} with decay on weights only.`,
    },
    {
        name: 'clipping', title: 'Clipping at a high rate', show: 'picture',
        intro: 'SGD with momentum at a rate of 0.3, too high for this net. In one run as it is. In the other, clipping shortens each gradient that is longer than 0.2 (the norm over all parameters) to 0.2.',
        stage: stageOf('spirals', NET.steep, 'momentum 0.3'),
        ask: 'What does clipping do here?',
        choices: ['its steps are shorter: it ends with a higher loss', 'no step is far too long: it ends with a lower loss', 'nothing: gradients are shorter than 0.2'],
        run: [0, 0.2].map((clip) => ({ label: clip ? `clipped at ${clip}` : 'not clipped',
            lines: [...stageOf('spirals', NET.steep, 'momentum 0.3', `clip ${clip}`), 'step 600', 'evaluate'],
            numbers: { factor: 'clip_factor', norm: 'grad_norm', loss: 'train_loss', accuracy: 'train_accuracy' } })),
        answer: ([a, b]) => (Math.abs(a.loss - b.loss) < 0.02 ? 2 : a.loss < b.loss ? 0 : 1),
        text: ([a, b], d, p) => `Clipping keeps a gradient’s direction. The smallest factor was ${d(b.smallest)}: that gradient was ${d(0.2 / b.smallest, 2)} long. Momentum repeats 0.9 of each move in the next step, ten times the move in all: such a gradient can move the weights by 0.3 × ${d(0.2 / b.smallest, 2)} × 10 = ${d(0.6 / b.smallest, 2)}, a clipped one by 0.6. The loss of a batch still jumps (the highest was ${d(b.highest)}, unclipped ${d(a.highest)}). After 600 steps the training loss is ${d(a.loss)} without and ${d(b.loss)} with clipping; right are ${p(a.accuracy)} and ${p(b.accuracy)}. Factor and norm in the table are of the last step, the norm before clipping.`,
    },
    {
        name: 'warmup', title: 'Warm-up', show: 'picture',
        intro: 'Adam on the transformer block, at a rate of 0.1, which is high for Adam. One run has the full rate from the first step. In the other the rate rises over the first 60 of 150 steps.',
        stage: stageOf('text', BLOCK, 'adam 0.1', 'batch 8'),
        ask: 'Which has the lower training loss after 150 steps?',
        choices: ['the full rate at once', 'with warm-up', 'they are the same, within 0.02'],
        run: [0, 60].flatMap((warmup) => {
            const [label, numbers] = [warmup ? 'warm-up' : 'at once', { rate: 'rate', moved: 'moved 0.weight', train: 'train_loss' }];
            return [
                { label: `${label}, 1 step`, numbers, lines: [...stageOf('text', BLOCK, 'adam 0.1', 'batch 8', `warmup ${warmup}`), 'step', 'evaluate 16'] },
                { label: `${label}, 150`, numbers, lines: ['step 149', 'evaluate 16'] },
            ];
        }),
        answer: ([, a, , b]) => (Math.abs(a.train - b.train) < 0.02 ? 2 : a.train < b.train ? 0 : 1),
        text: ([a1, a, b1, b], d) => `Adam divides each gradient by its usual size. At the first step that is its own size, so every number that has a gradient moves by about the whole rate. The batch has ${Math.round((a1.moved / a1.rate) ** 2 / 32)} different characters of 32 numbers: the embedding moves by ${d(a1.moved)}. With warm-up the first rate is ${d(b1.rate)} and it moves by ${d(b1.moved)}. After one step the full rate is ahead (loss ${d(a1.train)} against ${d(b1.train)}). But long steps that rest on few batches lead to weights from which training goes on more slowly: after 150 steps the training loss is ${d(a.train)} at once, ${d(b.train)} with warm-up.`,
    },
    {
        name: 'tied', title: 'Tied weights', show: 'gradients',
        intro: 'The embedding has a row of 32 numbers for each of 59 characters. So has the output layer’s weight: a row for each character it may answer. Tied, they are one tensor under two names, 0.weight and 4.weight.',
        stage: stageOf('text', BLOCK, 'adam 0.005', 'batch 8', 'tie'),
        ask: 'How many parameters (single numbers) fewer does the tied model have?', unit: 'parameters', near: 0,
        run: [
            { label: 'tied', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8', 'tie'), 'fill 4.bias 0', 'forward', 'backward'],
                numbers: { parameters: 'parameters', loss: 'loss', embedding: 'grad 0.weight', output: 'grad 4.weight' }, keep: { grad: 'grad 0.weight' } },
            { label: 'two, same numbers', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8'), 'copy 4.weight 0.weight', 'fill 4.bias 0', 'forward', 'backward'],
                numbers: { parameters: 'parameters', loss: 'loss', embedding: 'grad 0.weight', output: 'grad 4.weight' },
                keep: { grad: 'grad 0.weight', other: 'grad 4.weight' } },
        ],
        answer: ([a, b]) => b.parameters - a.parameters,
        text: ([a, b], d) => `59 × 32 numbers are there once, not twice. The second model has two tensors that hold the same numbers, so both give the same loss (${d(a.loss)} and ${d(b.loss)}; high, for an embedding’s numbers are large for an output layer). Its embedding has a gradient of norm ${d(b.embedding)}, its output weight one of ${d(b.output)}. The tied tensor has one gradient, whichever name asks for it (norm ${d(a.embedding)}, ${d(a.output)}): the sum of the two, number by number (norms do not add). The largest difference from that sum is ${d(farthest(a.grad, b.grad.map((v, i) => v + b.other[i])))}, rounding. The optimizer sees the tensor once.`,
    },
    {
        name: 'momentum', title: 'Momentum and Adam', show: 'picture',
        intro: 'Plain SGD, SGD with momentum (0.9) and Adam, all at a rate of 0.01, 1,000 steps each on the spirals.',
        stage: stageOf('spirals', NET.plain, 'sgd 0.01'),
        ask: 'Which has the lowest training loss at the end?',
        choices: ['SGD', 'momentum', 'Adam'],
        run: ['sgd', 'momentum', 'adam'].map((kind) => ({ label: kind, lines: [...stageOf('spirals', NET.plain, `${kind} 0.01`), 'step 1000', 'evaluate'],
            numbers: { loss: 'train_loss', accuracy: 'train_accuracy', moved: 'moved 2.weight' } })),
        answer: (parts) => least(parts.map((p) => p.loss)),
        text: ([s, m, a], d, p) => `The rate is the same, the steps are not. SGD moves by rate times gradient, and here gradients are small: layer 2’s weight moved by ${d(s.moved)}. Momentum repeats 0.9 of the last move, so gradients that agree go up to ten times as far; here ${d(m.moved)}. Adam divides by the gradient’s usual size, so a number may move by about the whole rate in each step, however small its gradient: ${d(a.moved)}. Training loss ${d(s.loss)}, ${d(m.loss)}, ${d(a.loss)}; of the training points ${p(s.accuracy)}, ${p(m.accuracy)}, ${p(a.accuracy)} are right.`,
    },
];

/* For a program that runs the same lines: in order, with the names of what to read after each part. */
if (typeof module === 'object' && typeof require === 'function' && require.main === module)
    console.log(JSON.stringify(LESSONS.map(({ name, stage, run }) => ({ name, parts: [{ lines: stage, numbers: [], values: [] },
        ...run.map((p) => ({ lines: p.lines, refused: p.refused, numbers: Object.values(p.numbers), values: Object.values(p.keep || {}) }))] })), null, 1));
