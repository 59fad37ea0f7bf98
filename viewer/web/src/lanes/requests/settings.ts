// Which requests are listed, and in which order.

export const ORDERS = {
  arrival: "by arrival",
  job: "by job",
  latency: "longest first",
  preemptions: "most preempted",
};
export type Order = keyof typeof ORDERS;

export const settings = { order: "arrival" as Order, inWindow: true };
