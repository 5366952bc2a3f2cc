// A net as objects, nodes and links, that computes sample by sample and link by link: how a page does it that has no
// library. Weights and formulas are those of live.h's `layer linear, layer tanh` with a loss of two classes, by SGD.

function makeNet(sizes) {
  const layers = sizes.map((n, k) => Array.from({ length: n }, () => ({ inputs: [], outputs: [], bias: 0, biasGrad: 0,
    tanh: k < sizes.length - 1, out: 0, grad: 0 })));
  for (let k = 1; k < layers.length; k++)
    for (const to of layers[k])
      for (const from of layers[k - 1]) {
        const link = { from, to, weight: (Math.random() * 2 - 1) / Math.sqrt(layers[k - 1].length), grad: 0 };
        to.inputs.push(link);
        from.outputs.push(link);
      }
  return layers;
}

function forward(layers, x) {
  layers[0].forEach((node, i) => { node.out = x[i]; });
  for (let k = 1; k < layers.length; k++)
    for (const node of layers[k]) {
      let sum = node.bias;
      for (const link of node.inputs) sum += link.weight * link.from.out;
      node.out = node.tanh ? Math.tanh(sum) : sum;
    }
  return layers[layers.length - 1][0];
}

function backward(layers, last, target) {
  last.grad = 1 / (1 + Math.exp(-last.out)) - target;
  for (let k = layers.length - 1; k > 0; k--) {
    for (const node of layers[k]) {
      const grad = node.tanh ? node.grad * (1 - node.out * node.out) : node.grad;
      node.grad = grad;
      node.biasGrad += grad;
      for (const link of node.inputs) link.grad += grad * link.from.out;
    }
    for (const node of k > 1 ? layers[k - 1] : []) {
      node.grad = 0;
      for (const link of node.outputs) node.grad += link.weight * link.to.grad;
    }
  }
}

function update(layers, rate) {
  for (const layer of layers)
    for (const node of layer) {
      node.bias -= rate * node.biasGrad;
      node.biasGrad = 0;
      for (const link of node.inputs) {
        link.weight -= rate * link.grad;
        link.grad = 0;
      }
    }
}

// Microseconds of a step, the median of rounds that take about a tenth of a second.
function playground(sizes, batch) {
  const layers = makeNet(sizes), took = [];
  const x = Array.from({ length: batch }, () => [Math.random(), Math.random()]);
  const step = () => {
    for (let i = 0; i < batch; i++) backward(layers, forward(layers, x[i]), i % 2);
    update(layers, 0.03 / batch);
  };
  let steps = 1;
  for (let since = performance.now(); performance.now() - since < 300;) step();
  for (let since = performance.now(); performance.now() - since < 100; steps++) step();
  for (let round = 0; round < 7; round++) {
    const since = performance.now();
    for (let i = 0; i < steps; i++) step();
    took.push((performance.now() - since) * 1000 / steps);
  }
  return took.sort((a, b) => a - b)[3];
}

// The same of the engine.
function engine(live, width, batch) {
  const took = [];
  for (const line of ['data xor', `batch ${batch}`, 'model', `layer linear ${width}`, 'layer tanh', `layer linear ${width}`,
    'layer tanh', 'build', 'optimizer sgd 0.03', 'step 500'])
    live.do(line);
  const rate = 500 / live.number('seconds'), steps = Math.max(1, Math.round(rate / 10));
  for (let round = 0; round < 7; round++) {
    const since = live.number('seconds');
    live.do(`step ${steps}`);
    took.push((live.number('seconds') - since) * 1e6 / steps);
  }
  return took.sort((a, b) => a - b)[3];
}
