/** Lays a graph out by dagre: nodes from top to bottom, edges as smooth lines. */

/** @typedef {import("./graph_model.js").Graph} Graph */

/** @typedef {{x: number, y: number, width: number, height: number}} Box centre and size */
/** @typedef {{boxes: Map<string, Box>, paths: {d: string, edge: import("./graph_model.js").Edge, x: number, y: number}[], width: number, height: number}} Drawing */

const LETTER = 7.3;
const NODE_HEIGHT = 42;
const END_HEIGHT = 30;

/**
 * @param {Graph} graph
 * @returns {Promise<Drawing>}
 */
export async function laidOut(graph) {
  await window.atenDumpScript("dagre");
  const { graphlib, layout } = window.dagre;
  const found = new graphlib.Graph({ multigraph: true });
  found.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 34, marginx: 12, marginy: 12 });
  found.setDefaultEdgeLabel(() => ({}));
  for (const node of graph.nodes) {
    const isEnd = node.kind === "input" || node.kind === "output";
    const letters = isEnd ? node.title.length + node.type.length + 1 : Math.max(node.title.length, Math.min(node.type.length, 34));
    found.setNode(node.id, { width: Math.max(90, letters * LETTER + 24), height: isEnd ? END_HEIGHT : NODE_HEIGHT });
  }
  const forward = graph.edges.filter(({ isBackward }) => !isBackward);
  forward.forEach((edge, i) => found.setEdge(edge.from, edge.to, { edge }, String(i)));
  layout(found);
  /** @type {Map<string, Box>} */
  const boxes = new Map(found.nodes().map((/** @type {string} */ id) => [id, found.node(id)]));
  const paths = found.edges().map((/** @type {any} */ key) => {
    const { points, edge } = found.edge(key);
    const middle = points[Math.floor(points.length / 2)];
    return { d: smooth(points), edge, x: middle.x, y: middle.y };
  });
  let right = 0;
  for (const edge of graph.edges.filter(({ isBackward }) => isBackward)) {
    const [from, to] = [boxes.get(edge.from), boxes.get(edge.to)];
    if (!from || !to) continue;
    right = Math.max(right, from.x + from.width / 2 + bulge(from, to), to.x + to.width / 2 + bulge(from, to));
    paths.push({ d: aside(from, to), edge, x: from.x, y: from.y });
  }
  const { width, height } = found.graph();
  return { boxes, paths, width: Math.max(width, right) + 20, height };
}

/** @param {{x: number, y: number}[]} points */
function smooth(points) {
  const [first, ...others] = points;
  let d = `M${first.x.toFixed(1)},${first.y.toFixed(1)}`;
  for (let i = 0; i < others.length; i++) {
    const [at, next] = [others[i], others[i + 1]];
    const end = next ? { x: (at.x + next.x) / 2, y: (at.y + next.y) / 2 } : at;
    d += `Q${at.x.toFixed(1)},${at.y.toFixed(1)} ${end.x.toFixed(1)},${end.y.toFixed(1)}`;
  }
  return d;
}

/**
 * How far a line beside two nodes keeps away from them: past those between.
 * @param {Box} from
 * @param {Box} to
 */
function bulge(from, to) {
  return Math.min(120, 14 + Math.abs(from.y - to.y) / 8);
}

/**
 * A line beside the nodes, for gradients, which go the other way.
 * @param {Box} from
 * @param {Box} to
 */
function aside(from, to) {
  const [startX, endX] = [from.x + from.width / 2, to.x + to.width / 2];
  const side = Math.max(startX, endX) + bulge(from, to);
  return `M${startX.toFixed(1)},${(from.y - 6).toFixed(1)}C${side.toFixed(1)},${(from.y - 10).toFixed(1)} ${side.toFixed(1)},${(to.y + 10).toFixed(1)} ${endX.toFixed(1)},${(to.y + 6).toFixed(1)}`;
}
