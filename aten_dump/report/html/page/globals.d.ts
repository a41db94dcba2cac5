/** What the page finds in the window beside the browser's own. */

interface Window {
  trustedTypes?: { createPolicy(name: string, rules: { createScript(text: string): string }): { createScript(text: string): unknown } };
  atenDumpScript(name: string): Promise<void>;
  uPlot: any;
  dagre: any;
}
