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
        intro: 'Layer 0 is linear with a bias; batch norm follows it. One batch goes forward and backward, then 200 steps of SGD train the model.',
        stage: stageOf('spirals', NET.bias, 'sgd 0.1'),
        ask: 'How large is the gradient of layer 0’s bias?',
        choices: ['about as large as that of its weight', 'a tenth of it', 'nothing but rounding'],
        run: [
            { label: 'first batch', lines: ['forward', 'backward'], numbers: { bias: 'grad 0.bias', weight: 'grad 0.weight', later: 'grad 3.bias' } },
            { label: '201 steps later', lines: ['update', 'step 200', 'evaluate'],
                numbers: { movedBias: 'moved 0.bias', movedWeight: 'moved 0.weight', movedLater: 'moved 3.bias', shift: 'moved 1.bias' } },
        ],
        answer: ([a]) => (a.bias < 1e-4 * a.weight ? 2 : a.bias < 0.3 * a.weight ? 1 : 0),
        text: ([a, b], d) => `Batch norm subtracts each channel’s mean over the batch. A bias adds the same number to the whole channel, so it is subtracted again and the loss does not depend on it: its gradient has norm ${d(a.bias)}, the weight’s ${d(a.weight)}. After training the bias has moved by ${d(b.movedBias)}, the weight by ${d(b.movedWeight)}. Layer 3’s bias has no norm behind it and moved by ${d(b.movedLater)}. What the bias would do, batch norm’s own bias does (moved by ${d(b.shift)}).`,
    },
    {
        name: 'vanishing', title: 'Vanishing gradients', show: 'gradients',
        intro: 'Five layers of 16, each with a sigmoid, on the circles. The gradient goes back through all five.',
        stage: stageOf('circles', NET.sigmoid, 'adam 0.01', 'batch 64'),
        ask: 'How many times smaller is the gradient of the first weight than that of the last?',
        choices: ['about 10 times', 'about 1,000 times', 'more than 10,000 times'],
        run: [
            ...[['sigmoid', NET.sigmoid, 10], ['relu', NET.relu, 10], ['with norms', NET.norms, 15]].map(([label, layers, last]) => ({
                label, lines: [...stageOf('circles', layers, 'adam 0.01', 'batch 64'), 'forward', 'backward'],
                numbers: { first: 'grad 0.weight', last: `grad ${last}.weight` } })),
            ...[['sigmoid, 300', NET.sigmoid], ['relu, 300', NET.relu]].map(([label, layers]) => ({
                label, lines: [...stageOf('circles', layers, 'adam 0.01', 'batch 64'), 'step 300', 'evaluate'], numbers: { accuracy: 'train_accuracy' } })),
        ],
        answer: ([a]) => (a.last > 1e4 * a.first ? 2 : a.last > 100 * a.first ? 1 : 0),
        text: ([a, r, b, s, t], d, p) => `The slope of a sigmoid is at most a quarter, and five of them multiply: ${d(a.first)} at the first layer, ${d(a.last)} at the last, ${d(Math.round(a.last / a.first))} times as much. With relu, whose slope is 1 where it lets through, the ratio is ${d(r.last / r.first)}. Batch norm rescales before each sigmoid: ${d(b.first)} and ${d(b.last)}. After 300 steps of Adam, ${p(s.accuracy)} of the training points are right with sigmoid, ${p(t.accuracy)} with relu.`,
    },
    {
        name: 'single', title: 'Batch norm and a batch of one', show: 'picture',
        intro: 'Batch norm takes the mean and variance of each channel over the batch. Now the batch is one point.',
        stage: stageOf('spirals', NET.single, 'sgd 0.1', 'batch 1'),
        ask: 'What does a training step do?',
        choices: ['it trains, noisily', 'every channel becomes 0 and it trains on that', 'the library refuses'],
        run: [
            { label: 'batch of 1', lines: ['step'], refused: 'step', numbers: { moved: 'moved 1.running_mean' } },
            { label: '1, eval mode', lines: ['mode eval', 'step'], numbers: { loss: 'loss', moved: 'moved 1.running_mean', weight: 'moved 0.weight' } },
            { label: 'batch of 2', lines: ['mode train', 'batch 2', 'step'], numbers: { loss: 'loss', moved: 'moved 1.running_mean', weight: 'moved 0.weight' } },
        ],
        answer: ([a]) => (a.said ? 2 : 0),
        text: ([a, e, b], d) => `One value has no spread: it is its own mean, so every channel would be 0 whatever the input. The library says so and does nothing. In eval mode the running statistics take the place of the batch’s: the step goes through (loss ${d(e.loss)}), the weight moves, and the running mean stays where it was (moved by ${d(e.moved)}). With two points there is a variance, though a poor one, and forward moves the running mean (by ${d(b.moved)}).`,
    },
    {
        name: 'eval', title: 'Eval mode forgotten', show: 'both',
        intro: 'A net with batch norm and dropout trains for 1,000 steps. Then it is judged on test points, in eval mode and, by mistake, in train mode.',
        stage: stageOf('spirals', NET.dropped, 'adam 0.01'),
        ask: 'Ten test points are judged in train mode. What happens to the loss?',
        choices: ['it is the same as in eval mode', 'it is higher than in eval mode', 'it is lower than in eval mode'],
        run: [{ label: 'eval, 100', lines: ['step 1000', 'judge eval', 'evaluate 100'], numbers: { loss: 'test_loss', accuracy: 'test_accuracy' } },
            judgedBy('train, 100', 'train', 100), judgedBy('eval, 10', 'eval', 10), judgedBy('train, 10', 'train', 10)],
        answer: ([, , e, t]) => (Math.abs(t.loss - e.loss) < 1e-6 ? 0 : t.loss > e.loss ? 1 : 2),
        text: ([e, t, e10, t10], d, p) => `In train mode dropout still drops, and batch norm takes the mean and variance of whatever points are judged together. With 100 test points the loss is ${d(t.loss)} in place of ${d(e.loss)}; with ten of them ${d(t10.loss)} in place of ${d(e10.loss)} (right: ${p(t10.accuracy)} and ${p(e10.accuracy)}). In train mode the answer for a point depends on its neighbours in the batch; in eval mode on the point alone.`,
    },
    {
        name: 'table', title: 'A table of positions', show: 'picture',
        intro: 'A transformer block reads characters. One model adds a positional table to the embeddings, the other has none. Both train for 150 steps.',
        stage: stageOf('text', BLOCK, 'adam 0.005', 'batch 8'),
        ask: 'After “the” and after “hte”: does the model without a table tell them apart?',
        choices: ['yes, attention sees the order', 'no, its answers are the same'],
        run: [
            { label: 'no table', lines: [...stageOf('text', BLOCK.filter((l) => l !== 'table'), 'adam 0.005', 'batch 8'), 'step 150', 'evaluate 8'],
                numbers: { loss: 'test_loss' }, keep: { the: 'next the', hte: 'next hte' } },
            { label: 'table', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8'), 'step 150', 'evaluate 8', 'give 1.pe'],
                numbers: { loss: 'test_loss', moved: 'moved 1.pe', weight: 'moved 0.weight' }, keep: { the: 'next the', hte: 'next hte' } },
        ],
        answer: ([a]) => (farthest(a.the, a.hte) < 1e-4 ? 1 : 0),
        text: ([a, b], d) => `Attention adds up what it looks at, and a sum has no order. Without a table the probabilities of the next character differ by at most ${d(farthest(a.the, a.hte))} between the two; with it by up to ${d(farthest(b.the, b.hte))}. The table is a buffer: after training the embedding has moved by ${d(b.weight)}, the table by ${d(b.moved)}, and an optimizer that is given it refuses.`,
    },
    {
        name: 'decay', title: 'Weight decay and norms', show: 'picture',
        intro: 'SGD with momentum and a weight decay of 0.01, on a net with batch norm. Once decay pulls on all parameters, once it spares biases and norms.',
        stage: stageOf('spirals', NET.decayed, 'momentum 0.05 0.01'),
        ask: 'Which model fits the training points better after 1,000 steps?',
        choices: ['decay on everything', 'decay on weights only', 'no difference'],
        run: ['off', 'on'].map((spare) => ({ label: spare === 'off' ? 'on everything' : 'on weights only',
            lines: [...stageOf('spirals', NET.decayed, 'momentum 0.05 0.01', `no_decay_on_norms ${spare}`), 'step 1000', 'evaluate'],
            numbers: { gain: 'norm 1.weight', gain2: 'norm 4.weight', weight: 'norm 0.weight', loss: 'train_loss', accuracy: 'train_accuracy' } })),
        answer: ([a, b]) => (Math.abs(a.loss - b.loss) < 0.02 ? 2 : a.loss < b.loss ? 0 : 1),
        text: ([a, b], d, p) => `Decay on a linear weight before batch norm does not change what the layer can say: the norm divides its size out. Decay on the norm’s own weight does: that is the scale of the channel. Its norm, ${d(Math.sqrt(32))} at first, fell to ${d(a.gain)} and ${d(a.gain2)}; spared, it is ${d(b.gain)} and ${d(b.gain2)}. Right on the training points: ${p(a.accuracy)} against ${p(b.accuracy)}.`,
    },
    {
        name: 'clipping', title: 'Clipping at a high rate', show: 'picture',
        intro: 'SGD with momentum at a rate of 0.3, too high for this net. Once as it is, once with gradients clipped to a norm of 0.2.',
        stage: stageOf('spirals', NET.steep, 'momentum 0.3'),
        ask: 'What does clipping do here?',
        choices: ['shorter steps: it ends with a higher loss', 'steadier steps: it ends with a lower loss', 'nothing: gradients are small'],
        run: [0, 0.2].map((clip) => ({ label: clip ? `clipped at ${clip}` : 'not clipped',
            lines: [...stageOf('spirals', NET.steep, 'momentum 0.3', `clip ${clip}`), 'step 600', 'evaluate'],
            numbers: { factor: 'clip_factor', norm: 'grad_norm', loss: 'train_loss', accuracy: 'train_accuracy' } })),
        answer: ([a, b]) => (Math.abs(a.loss - b.loss) < 0.02 ? 2 : a.loss < b.loss ? 0 : 1),
        text: ([a, b], d, p) => `One steep place gives a long gradient, and momentum keeps it for many steps: that throws the weights far off. Clipping shortens a gradient whose norm is above 0.2 and leaves its direction, and all shorter ones as they are; the smallest factor was ${d(b.smallest)}. The highest loss of a batch was ${d(a.highest)}, clipped ${d(b.highest)}. After 600 steps the training loss is ${d(a.loss)} without and ${d(b.loss)} with it (right: ${p(a.accuracy)} and ${p(b.accuracy)}).`,
    },
    {
        name: 'warmup', title: 'Warm-up', show: 'picture',
        intro: 'Adam at a rate of 0.1 on the transformer block, which is high. Once at once, once with the rate rising over the first 60 of 150 steps.',
        stage: stageOf('text', BLOCK, 'adam 0.1', 'batch 8'),
        ask: 'Which has the lower loss after 150 steps?',
        choices: ['the full rate at once', 'with warm-up', 'they are the same, within 0.02'],
        run: [0, 60].flatMap((warmup) => {
            const [label, numbers] = [warmup ? 'warm-up' : 'at once', { rate: 'rate', moved: 'moved 0.weight', train: 'train_loss' }];
            return [
                { label: `${label}, 1 step`, numbers, lines: [...stageOf('text', BLOCK, 'adam 0.1', 'batch 8', `warmup ${warmup}`), 'step', 'evaluate 16'] },
                { label: `${label}, 150`, numbers, lines: ['step 149', 'evaluate 16'] },
            ];
        }),
        answer: ([, a, , b]) => (Math.abs(a.train - b.train) < 0.02 ? 2 : a.train < b.train ? 0 : 1),
        text: ([a1, a, b1, b], d) => `Adam divides each gradient by its own size, so its first step moves every number that has a gradient by about the whole rate: the embedding by ${d(a1.moved)}, before anything is known of the data. With warm-up the first rate is ${d(b1.rate)} in place of ${d(a1.rate)} and the embedding moves by ${d(b1.moved)}. After 150 steps at the same rate the training loss is ${d(a.train)} at once and ${d(b.train)} with warm-up.`,
    },
    {
        name: 'tied', title: 'Tied weights', show: 'gradients',
        intro: 'The output layer’s weight and the embedding have the same shape, one row for each character. Tied, they are one tensor under two names.',
        stage: stageOf('text', BLOCK, 'adam 0.005', 'batch 8', 'tie'),
        ask: 'The embedding has 59 rows of 32 numbers. How many parameters fewer does the tied model have?', unit: 'parameters', near: 0,
        run: [
            { label: 'tied', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8', 'tie'), 'fill 4.bias 0', 'forward', 'backward'],
                numbers: { parameters: 'parameters', loss: 'loss', embedding: 'grad 0.weight', output: 'grad 4.weight' }, keep: { grad: 'grad 0.weight' } },
            { label: 'two, same numbers', lines: [...stageOf('text', BLOCK, 'adam 0.005', 'batch 8'), 'copy 4.weight 0.weight', 'fill 4.bias 0', 'forward', 'backward'],
                numbers: { parameters: 'parameters', loss: 'loss', embedding: 'grad 0.weight', output: 'grad 4.weight' },
                keep: { grad: 'grad 0.weight', other: 'grad 4.weight' } },
        ],
        answer: ([a, b]) => b.parameters - a.parameters,
        text: ([a, b], d) => `The second model has two tensors that hold the same numbers, so both give the same loss (${d(a.loss)} and ${d(b.loss)}). Its embedding has a gradient of norm ${d(b.embedding)}, its output weight one of ${d(b.output)}. The tied tensor has one gradient, whichever name asks for it (${d(a.embedding)}, ${d(a.output)}): the sum of the two, number by number. The largest difference from that sum is ${d(farthest(a.grad, b.grad.map((v, i) => v + b.other[i])))}. The optimizer sees the tensor once.`,
    },
    {
        name: 'momentum', title: 'Momentum and Adam', show: 'picture',
        intro: 'Plain SGD, SGD with momentum and Adam, all at a rate of 0.01, 1,000 steps each on the spirals.',
        stage: stageOf('spirals', NET.plain, 'sgd 0.01'),
        ask: 'Which has the lowest training loss?',
        choices: ['SGD', 'momentum', 'Adam'],
        run: ['sgd', 'momentum', 'adam'].map((kind) => ({ label: kind, lines: [...stageOf('spirals', NET.plain, `${kind} 0.01`), 'step 1000', 'evaluate'],
            numbers: { loss: 'train_loss', accuracy: 'train_accuracy', moved: 'moved 2.weight' } })),
        answer: (parts) => least(parts.map((p) => p.loss)),
        text: ([s, m, a], d, p) => `The rate is the same, the steps are not. SGD moves by rate times gradient, and here gradients are small: layer 2’s weight moved by ${d(s.moved)}. Momentum adds up gradients that agree, up to ten times as far: ${d(m.moved)}. Adam divides by the gradient’s usual size, so that a number may move by the whole rate in each step, however small its gradient: ${d(a.moved)}. Loss ${d(s.loss)}, ${d(m.loss)}, ${d(a.loss)}; right ${p(s.accuracy)}, ${p(m.accuracy)}, ${p(a.accuracy)}.`,
    },
];

/* For a program that runs the same lines: in order, with the names of what to read after each part. */
if (typeof module === 'object' && typeof require === 'function' && require.main === module)
    console.log(JSON.stringify(LESSONS.map(({ name, stage, run }) => ({ name, parts: [{ lines: stage, numbers: [], values: [] },
        ...run.map((p) => ({ lines: p.lines, refused: p.refused, numbers: Object.values(p.numbers), values: Object.values(p.keep || {}) }))] })), null, 1));
