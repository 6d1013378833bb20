"""How the agent is deployed; the code here runs in the image and in the self-contained build."""
