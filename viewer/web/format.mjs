// Formats the page's TypeScript; with --check it only names the files that are not formatted.

import { createContext } from "@dprint/formatter";
import { getPath } from "@dprint/typescript";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const OPTIONS = { useBraces: "maintain", "variableStatement.preferHanging": true };
const HERE = import.meta.dirname, check = process.argv.includes("--check");

const context = createContext({ lineWidth: 120, indentWidth: 2 });
context.addPlugin(readFileSync(getPath()), OPTIONS);
const sources = readdirSync(join(HERE, "src"), { recursive: true }).filter((name) => name.endsWith(".ts"));
for (const name of [...sources.map((name) => join("src", name)), "vite.config.ts", "format.mjs"]) {
  const filePath = join(HERE, name), fileText = readFileSync(filePath, "utf-8");
  const formatted = context.formatText({ filePath, fileText });
  if (formatted === fileText) continue;
  if (!check) writeFileSync(filePath, formatted);
  else {
    console.error(`${filePath}: not formatted; make format`);
    process.exitCode = 1;
  }
}
