// The logits of Keras's ResNet-50 by TensorFlow.js, for test_image_checkpoints.py. Run once:
//   npm install @tensorflow/tfjs@4
//   node keras_resnet_logits.js FOLDER_WITH_MODEL_JSON keras_resnet_logits.json
const fs = require("fs"), path = require("path");
const tf = require("@tensorflow/tfjs");

const [folder, out] = process.argv.slice(2);
const SIZE = 224, MEAN = [103.939, 116.779, 123.68];

// Blue, green and red of a made-up picture of stripes and rings, the same as `picture` in the test.
function picture(kind) {
  const pixels = new Float32Array(SIZE * SIZE * 3);
  for (let y = 0; y < SIZE; y++) for (let x = 0; x < SIZE; x++) for (let c = 0; c < 3; c++) {
    const value = kind === 0 ? (7 * y + 13 * x + 29 * c + 5 * ((x * y) % 17)) % 256
      : (Math.floor(((y - 100) * (y - 100) + (x - 120) * (x - 120)) / (40 + 10 * c)) * 11) % 256;
    pixels[(y * SIZE + x) * 3 + c] = value - MEAN[c];
  }
  return tf.tensor4d(pixels, [1, SIZE, SIZE, 3]);
}

async function main() {
  const model = JSON.parse(fs.readFileSync(path.join(folder, "model.json")));
  const manifest = model.weightsManifest;
  const specs = manifest.flatMap((group) => group.weights);
  const data = Buffer.concat(manifest.flatMap((group) => group.paths.map((p) => fs.readFileSync(path.join(folder, p)))));
  const weightData = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  const net = await tf.loadLayersModel({ load: async () => ({ modelTopology: model.modelTopology, weightSpecs: specs, weightData }) });
  const features = tf.model({ inputs: net.inputs, outputs: net.getLayer("avg_pool").output });
  const [kernel, bias] = net.getLayer("fc1000").getWeights();
  const logits = [];
  for (const kind of [0, 1]) {
    const x = features.predict(picture(kind));
    logits.push(Array.from(tf.add(tf.matMul(x, kernel), bias).dataSync()));
  }
  fs.writeFileSync(out, JSON.stringify({ tfjs: tf.version.tfjs, logits }) + "\n");
}
main();
